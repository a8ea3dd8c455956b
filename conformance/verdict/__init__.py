"""From a case and the evidence of its ranks to a verdict. Nothing here imports torch."""
