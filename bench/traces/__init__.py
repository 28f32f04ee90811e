"""How would other projects' routers fare on a recorded workload? `baselines.py` models them."""
