"""Laws: rules about what ranks do and in which order, as pure functions over their traces."""
