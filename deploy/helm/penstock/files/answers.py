"""`helm test`: the gateway at an address answers through its Service, is ready, and names its models.

python answers.py http://gate.llm.svc:80
"""

import json
import ssl
import sys
import urllib.error
import urllib.request

ADDRESS = sys.argv[1]
# Whether it answers is asked, not who it is: its certificate is for the names that callers know.
ANY_NAME = ssl._create_unverified_context() if ADDRESS.startswith("https:") else None

for path in ("/livez", "/readyz", "/v1/models"):
    try:
        with urllib.request.urlopen(ADDRESS + path, timeout=10, context=ANY_NAME) as answer:
            said = answer.read()
    except urllib.error.HTTPError as error:
        if path == "/v1/models" and error.code == 401:
            print("/v1/models: asks for a key, as it was told to")
            continue
        sys.exit(f"{path}: {error.code} {error.read(500).decode()}")
    except OSError as error:
        sys.exit(f"{ADDRESS}{path}: {error}")
    if path == "/v1/models":
        models = [model["id"] for model in json.loads(said)["data"]]
        print(f"{path} names {models or 'no model yet: no engine was found'}")
    else:
        print(f"{path} answers")
