"""The parts of `overhead.py`: an engine, a load client, and how each proxy is started."""
