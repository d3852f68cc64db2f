"""Limits on the sizes that transom reads and prints, with the reason for each.

A file may declare any size, and a small file may expand to any amount of memory. Each limit is far above real use and is checked before
memory is allocated.
"""

MAX_DEPTH = 50
"""Nesting levels of tables and lists in TOML and JSON; a recipe has at most 6. Parsers recurse once per level."""

MAX_DIGITS = 40
"""Digits of a number in TOML or JSON; 64-bit integers have 20. Python refuses 4,300 digits and takes quadratic time below that."""

MAX_INT = 2**63 - 1
"""Integer in a configuration: the largest signed 64-bit integer, as in PyTorch."""

MAX_FLOAT = 3.4e38
"""Floating-point number in a configuration: the range of float32."""

MAX_RECIPE_BYTES = 2**20
"""Bytes of a recipe or of a ``--set`` value; the packaged recipes have at most 3,000."""

MAX_RECIPE_VALUES = 20_000
"""Names and list elements in a recipe: the parser takes 1 KB per part of a dotted name, validation 1 KB per invalid element."""

MAX_CONFIG_BYTES = 2**20
"""Bytes of a run's ``config.json``; only its class names can become numerous."""

MAX_PLUGIN_BYTES = 2**24
"""Bytes of a plugin's Python file."""

MAX_JSON_BYTES = 2**26
"""Bytes of any other JSON file of a run."""

MAX_METRICS_BYTES = 2**30
"""Bytes of a run's ``metrics.jsonl``: a few million records."""

MAX_EVALUATION_LOG_BYTES = 2**26
"""Bytes of a run's ``ledger.jsonl``: about 300,000 evaluations."""

MAX_TOKENIZER_BYTES = 2**25
"""Bytes of a ``tokenizer.json``; a million words take about half. Parsing a list of short strings takes ten times its bytes in memory."""

MAX_VOCAB_SIZE = 1_000_000
"""Tokens in a vocabulary; the largest published vocabularies have 256,000."""

MAX_TOKEN_CHARACTERS = 1_000
"""Characters of a token: words have at most 64, runs of white space are unbounded. Nested merges would double the length each time."""

MAX_TOKENIZER_LISTS = MAX_VOCAB_SIZE + 2**16
"""Lists in a ``tokenizer.json``: one per merge; each takes eight times its bytes in memory."""

MAX_TOKENIZER_STRINGS = 3 * MAX_VOCAB_SIZE
"""Strings in a ``tokenizer.json``: two per merge, one per character or word."""

MAX_LINE_BYTES = 2**20
"""Bytes per line of a text with one sample per line; a longer line means a binary file or one without newlines."""

MAX_DOCUMENT_LINE_BYTES = 2**30
"""Bytes per line of a document; continuous text needs no newlines."""

MAX_UNPACKED_BYTES = 2**34
"""Bytes of a decompressed gzip file, 16 GiB: the whole text is held in memory."""

MAX_UNPACKED_RATIO = 100
"""Decompressed bytes per compressed byte of a gzip file; text has 3 to 20, a decompression bomb up to 1,030."""

MIN_UNPACKED_BYTES_FOR_RATIO = 2**20
"""Decompressed bytes below which the ratio is not checked: small files of repeated lines are harmless; a million empty lines
take a second."""

MAX_CLASS_NAMES_BYTES = 2**18
"""Total bytes of all class names; escaped, they fit in a run's ``config.json``."""

MAX_CLASSES = 10_000
"""Number of classes of labeled samples; more than this suggests that the labels column holds something else."""

MAX_IMAGE_BYTES = 2**27
"""Bytes of an image file."""

MAX_IMAGE_PIXELS = 2**26
"""Pixels of an image, 67 million: a small file may declare any size."""

MAX_PATCHES = 2**16
"""Patches per image: attention compares all pairs of patches."""

MAX_POSITION_TABLE_SIZE = 2**28
"""Numbers in a position table: learned, or computed by a model with at least as many weights."""

MIN_POSITION_TABLE_LIMIT = 2**24
"""Numbers in a computed position table, 64 MiB, allowed for a model of any size; a larger table requires as many weights."""

MAX_ERROR_CHARACTERS = 500
"""Characters per error line."""
