"""Which paths does the gateway answer itself? `own_paths.py`: alive, ready, models, metrics. `ollama.py`: the models in
the dialect of Ollama's clients. `queue.py`: a client's own requests and limits. `engine_paths.py`: engines by their
names, put to sleep and woken. `autoscale.py`: how many of them it takes. `operators_app.py`: operators' paths, maybe at
a separate address. `trial.py`: a test request that an operator sends as a tenant.
"""
