"""Commands that change a running gateway: a noun, then a verb.

One file per noun.
"""
