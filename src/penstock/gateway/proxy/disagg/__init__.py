"""A request that is divided: who computes its prompt, who answers, and in which order are they asked?

`base.py` is what a journey asks of both forms; `sequential.py`: the second engine is asked when the first is done
(vLLM); `concurrent.py`: both at once, and they meet (SGLang).
"""
