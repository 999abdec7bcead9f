"""HOW it is computed: torch modules, one file per axis, named as in ``tfblock_cli.spec``.

Shapes ride on names: B sequences, T queries, S keys, D width of the stream, H query heads, K key-value heads,
E width of a head, F hidden width of the FFN, V vocabulary.
"""
