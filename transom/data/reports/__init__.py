"""What is known of data before step 1, a page for each kind of them."""
