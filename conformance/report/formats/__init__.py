"""What CI systems read: one module for each format, all made from the same cards as the report."""
