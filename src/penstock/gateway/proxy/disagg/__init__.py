"""A divided request: one engine computes its prompt, another one answers.

`base.py` is the interface for a journey; `sequential.py` asks the second engine when the first is done (vLLM),
`concurrent.py` both at once (SGLang).
"""
