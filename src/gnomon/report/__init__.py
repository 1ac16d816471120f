"""Tables, HTML, traces and columnar files made from records."""
