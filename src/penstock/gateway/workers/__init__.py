"""How do several processes serve one port as one gateway? The first one decides, the others carry bytes.

`office.py` is the first process's side: it hears what workers say, and says what they have to know: of endpoints
(`board.py`), and at their start (`handing.py`). `place.py` is one worker as it knows it, `processes.py` starts them and
starts them again. `worker.py` is a worker's side, which `__main__.py` runs; `deciding.py` says whom it tells facts,
`targets.py` are the endpoints as it knows them, `relayed.py` what it lets the first process answer, `counts.py` what it
counted, `answers.py` the answers that engines keep, known to all processes. `link.py` is the socket between them; what
passes there, and what becomes of it, is in `penstock/share`.
"""
