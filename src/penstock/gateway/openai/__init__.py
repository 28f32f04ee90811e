"""What do bodies and answers mean, in OpenAI's API and the engines' own?

`routes.py` is the table of paths, `wrong_paths.py` tells callers of other paths which they mean. Of a request:
`body.py` (what scheduling must know of it), `fields.py`, `contents.py` (text, token ids, pictures, sounds), `forms.py`
and `multipart.py`; large ones are read in steps by `scan.py` and changed by `splice.py`; `prefix_keys.py` makes the
chain of hashes by which prompts that begin alike are known; `dialects.py` holds an answer to a bound before it is
made. Of an answer: the room `answers`, and `unfit.py` (does a refusal speak of the request's size or kind).
`errors.py` is the one table from reasons to
statuses and error bodies.
"""
