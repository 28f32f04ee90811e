"""Bodies and answers of OpenAI's API and the engines' own.

`routes.py` is the table of paths, `wrong_paths.py` suggests one for a wrong path. Of a request: `body.py` (the fields
for scheduling), `fields.py`, `contents.py` (text, token ids, pictures, sounds), `forms.py` and
`multipart.py`; large ones are read in steps by `scan.py`, a slice of each turn's time (`slices.py`), and changed by
`splice.py`; `prefix_keys.py` makes the chain of hashes that identifies prefixes, `prompt_ends.py` the hashes by which
the next turn of a conversation is known; `dialects.py` bounds answers in advance. Of an answer: the room `answers`, and
`unfit.py` (refusals for a request's size or kind). `errors.py` is the one table from reasons to statuses and error
bodies.
"""
