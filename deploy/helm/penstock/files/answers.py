import json, ssl, sys, urllib.request

address, trusting = sys.argv[1], ssl._create_unverified_context()
for path in ("/livez", "/readyz", "/v1/models"):
    try:
        with urllib.request.urlopen(address + path, timeout=10, context=trusting if address[:5] == "https" else None) as answer:
            said = answer.read()
    except urllib.error.HTTPError as error:
        if path == "/v1/models" and error.code == 401:
            print("/v1/models: asks for a key, as it was told to")
            continue
        sys.exit(f"{path}: {error.code} {error.read(500).decode()}")
    except OSError as error:
        sys.exit(f"{address}{path}: {error}")
    models = [model["id"] for model in json.loads(said)["data"]] if path == "/v1/models" else None
    print(path, "answers" if models is None else f"names {models or 'no model yet: no engine was found'}")
