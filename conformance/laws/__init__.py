"""Laws: what must hold of the order in which ranks do things, as pure functions over their traces."""
