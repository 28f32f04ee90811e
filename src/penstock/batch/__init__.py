"""Files and batches: how is work that can wait run in idle slots, and none of it lost?

`states.py` is the table of a batch's life, `values.py` is what the store keeps. `manager.py` takes batches through
their states; `runner.py` claims items and offers them to the scheduler through `dispatch_port.py`; `input_file.py`
reads input files; `api_objects.py` has OpenAI's shapes; `window.py` and `eta.py` say when a batch has to be done, and
when it will be. `store/` keeps everything; `api/` is the HTTP side.
"""
