"""The limits on what transom reads and prints: one table, with the reason for each.

A file may claim any size, and a small one may unfold into any amount of memory. Each limit is far above what real use needs, and is
checked before memory is taken.
"""

MAX_DEPTH = 50
"""Levels of tables and lists within each other, in TOML and in JSON; a recipe has at most 6. Parsers recurse per level."""

MAX_DIGITS = 40
"""Digits of a number in TOML or JSON; 64 bits have 20. Python refuses to convert 4,300 and takes quadratic time below that."""

MAX_INT = 2**63 - 1
"""Whole number of a configuration: what 64 bits hold, as PyTorch's do."""

MAX_FLOAT = 3.4e38
"""Number of a configuration: what float32 holds."""

MAX_RECIPE_BYTES = 2**20
"""Bytes of a recipe, or of a value of ``--set``; the packaged ones have at most 3,000."""

MAX_RECIPE_VALUES = 20_000
"""Names and list elements of a recipe: the parser takes a kilobyte per part of a dotted name, validation as much per wrong element."""

MAX_CONFIG_BYTES = 2**20
"""Bytes of a run's ``config.json``, in which only the names of classes can be many."""

MAX_PLUGIN_BYTES = 2**24
"""Bytes of a plugin's Python file."""

MAX_JSON_BYTES = 2**26
"""Bytes of another file of a run."""

MAX_METRICS_BYTES = 2**30
"""Bytes of a run's ``metrics.jsonl``: some million records."""

MAX_LEDGER_BYTES = 2**26
"""Bytes of a run's ``ledger.jsonl``: some 300,000 evaluations."""

MAX_TOKENIZER_BYTES = 2**25
"""Bytes of a ``tokenizer.json``; a million words take about half. Parsed, a list of short strings takes ten times its bytes."""

MAX_SYMBOLS = 1_000_000
"""Symbols of a vocabulary; the largest published ones have 256,000."""

MAX_SYMBOL_CHARACTERS = 1_000
"""Characters of a symbol: a word has 64 at most and white space any number. Merges of merges would double it each time."""

MAX_TOKENIZER_LISTS = MAX_SYMBOLS + 2**16
"""Lists in a ``tokenizer.json``: each merge is one, and takes eight times its bytes in memory."""

MAX_TOKENIZER_STRINGS = 3 * MAX_SYMBOLS
"""Strings in a ``tokenizer.json``: two per merge, one per character or word."""

MAX_LINE_BYTES = 2**20
"""Bytes of a line of a text with one sample per line: a longer one is a binary file or one without line ends, not a sentence."""

MAX_DOCUMENT_LINE_BYTES = 2**30
"""Bytes of a line of a document: continuous text needs no line ends."""

MAX_UNPACKED_BYTES = 2**34
"""Bytes of an unpacked gzip file, 16 GiB: text is held in memory as a whole."""

MAX_UNPACKED_RATIO = 100
"""Unpacked bytes per packed byte of a gzip file; text has 3 to 20, a bomb up to 1,030."""

UNPACKED_FREE_BYTES = 2**20
"""Unpacked bytes to which no ratio applies: a small file of repeated lines is no threat, a million empty lines
take a second."""

MAX_CLASS_NAMES_BYTES = 2**18
"""Bytes of the names of all classes together: escaped, they fit a run's ``config.json``."""

MAX_CLASSES = 10_000
"""Classes of labelled samples: more than these are something else in their place."""

MAX_IMAGE_BYTES = 2**27
"""Bytes of an image's file."""

MAX_IMAGE_PIXELS = 2**26
"""Pixels of an image, 67 million: a small file may claim any size."""

MAX_PATCHES = 2**16
"""Patches of an image: attention compares all of them with all."""

MAX_POSITION_TABLE = 2**28
"""Numbers in a table of positions that is learned, or that a model of as many weights computes."""

FREE_POSITION_TABLE = 2**24
"""Numbers in a computed table of positions, 64 MiB, to which a model of any size has a right; a larger table needs as many weights."""

MAX_ERROR_CHARACTERS = 500
"""Characters of an error line."""
