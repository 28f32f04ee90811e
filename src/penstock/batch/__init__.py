"""Files and batches: how is work that can wait run in what is idle, and none of it lost?

`states.py` is the table of a batch's life and `values.py` what is kept. `manager.py` takes batches through their
states, `runner.py` claims items and offers them through `dispatch_port.py`; `input_file.py` reads input files,
`api_objects.py` has OpenAI's shapes, `window.py` and `eta.py` say by when. `store/` keeps everything; `api/` is the
HTTP side.
"""
