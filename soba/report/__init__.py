"""What records say, shown: tables, pictures, a page, and the paper's numbers beside them."""
