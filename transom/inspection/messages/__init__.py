"""Messages of pages: one table per language, how to read them, and the script that shows a page in each of them."""
