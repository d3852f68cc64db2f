"""Limits on the sizes of files, values and messages, with the reason for each.

A file may declare any size, and a small file may expand to any amount of memory. Each limit is far above real use and is checked before
memory is allocated.
"""

MAX_DEPTH = 50
"""Maximum nesting depth of tables and lists in TOML and JSON; a recipe has at most 6 levels. Parsers recurse once per level."""

MAX_DIGITS = 40
"""Maximum number of digits of an integer in TOML or JSON; a 64-bit integer has at most 20.

Python rejects integers of more than 4,300 digits; below that, parsing takes quadratic time.
"""

MAX_INT = 2**63 - 1
"""Maximum integer in a configuration: the largest signed 64-bit integer, as in PyTorch."""

MAX_FLOAT = 3.4e38
"""Maximum floating-point number in a configuration: about the largest float32."""

MAX_LAYERS = 1000
"""Maximum number of layers of a stack; lists of fields that repeat over the blocks are combined up to this number."""

MAX_RECIPE_BYTES = 2**20
"""Maximum size in bytes of a recipe or of a ``--set`` value; the packaged recipes have at most 3,000 bytes."""

MAX_RECIPE_VALUES = 20_000
"""Maximum number of names and list elements in a recipe.

The parser uses 1 KB of memory per part of a dotted name, and validation uses 1 KB per invalid element.
"""

MAX_CONFIG_BYTES = 2**20
"""Maximum size in bytes of a run's ``config.json``; only its list of class names can become long."""

MAX_PLUGIN_BYTES = 2**24
"""Maximum size in bytes of a plugin's Python file."""

MAX_JSON_BYTES = 2**26
"""Maximum size in bytes of a run's JSON files for which no other limit is defined here."""

MAX_METRICS_BYTES = 2**30
"""Maximum size in bytes of a run's ``metrics.jsonl``, enough for a few million records."""

MAX_EVALUATION_LOG_BYTES = 2**26
"""Maximum size in bytes of a run's ``ledger.jsonl``, enough for about 300,000 evaluations."""

MAX_TOKENIZER_BYTES = 2**25
"""Maximum size in bytes of a ``tokenizer.json``; a vocabulary of a million words needs about half of this limit.

In memory, a parsed list of short strings takes about ten times its size in the file.
"""

MAX_VOCAB_SIZE = 1_000_000
"""Maximum number of tokens in a vocabulary; the largest published vocabularies have 256,000."""

MAX_TOKEN_CHARACTERS = 1_000
"""Maximum number of characters per token. Words have at most 64 characters, but runs of whitespace can be longer.

Without a limit, each merge in a malicious ``tokenizer.json`` could double the length of the longest token.
"""

MAX_TOKENIZER_LISTS = MAX_VOCAB_SIZE + 2**16
"""Maximum number of lists in a ``tokenizer.json``, which has one per merge.

In memory, a parsed list takes about eight times its size in the file.
"""

MAX_TOKENIZER_STRINGS = 3 * MAX_VOCAB_SIZE
"""Maximum number of strings in a ``tokenizer.json``, which has two per merge and one per character or word."""

MAX_LINE_BYTES = 2**20
"""Maximum size in bytes of a line in a file with one sample per line; a longer line suggests a binary file or missing newlines."""

MAX_DOCUMENT_LINE_BYTES = 2**30
"""Maximum size in bytes of a line in a document; continuous text needs no newlines."""

MAX_UNPACKED_BYTES = 2**34
"""Maximum size in bytes of a decompressed gzip file, 16 GiB: the whole text is held in memory."""

MAX_UNPACKED_RATIO = 100
"""Maximum number of decompressed bytes per compressed byte of a gzip file: 3 to 20 for text, up to 1,030 for a decompression bomb."""

MIN_UNPACKED_BYTES_FOR_RATIO = 2**20
"""Decompressed size in bytes below which ``MAX_UNPACKED_RATIO`` is not checked, because small files of repeated lines are harmless.

At this size, even a file of a million empty lines is read in a second.
"""

MAX_CLASS_NAMES_BYTES = 2**18
"""Maximum total size of all class names in UTF-8 bytes; even with all characters escaped, they fit in a run's ``config.json``."""

MAX_CLASSES = 10_000
"""Maximum number of classes of labeled samples; more suggest that the column given for labels does not contain labels."""

MAX_IMAGE_BYTES = 2**27
"""Maximum size in bytes of an image file."""

MAX_IMAGE_PIXELS = 2**26
"""Maximum number of pixels of an image, 67 million: a small file may declare any size."""

MAX_PATCHES = 2**16
"""Maximum number of patches per image; attention compares all pairs of patches."""

MAX_POSITION_TABLE_SIZE = 2**28
"""Maximum number of values in a position table, whatever the size of the model; see also ``MIN_POSITION_TABLE_LIMIT``."""

MIN_POSITION_TABLE_LIMIT = 2**24
"""Number of values (64 MiB) that a computed position table may always have.

A larger computed table may have at most as many values as the model has parameters.
"""

MAX_ERROR_CHARACTERS = 500
"""Maximum number of characters per error message."""
