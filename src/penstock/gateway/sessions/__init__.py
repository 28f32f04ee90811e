"""Of which agent's session is a request a turn?

`session_names.py` has the names by which clients tell it, `session_reader.py` reads them, `kept_answers.py` knows the
sessions of the answers that engines keep. A request without a name is known by its prompt:
`gateway/openai/prompt_ends.py` makes the hashes, `core/sessions/recognition.py` compares them. `session_verbs.py` has
the operators' verbs.
"""
