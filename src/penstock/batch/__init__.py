"""Files and batches: how is work that can wait run in idle slots, and none of it lost?

`states.py` is the table of a batch's states, `values.py` has the stored records. `manager.py` moves batches through
their states; `runner.py` claims items and offers them to the scheduler through `dispatch_port.py`; `input_file.py`
reads input files; `api_objects.py` has OpenAI's shapes; `window.py` and `eta.py` compute a batch's deadline and
expected end. `store/` keeps everything; `api/` is the HTTP side.
"""
