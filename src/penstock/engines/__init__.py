"""How each engine speaks: one small file each."""
