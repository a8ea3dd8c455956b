"""The laws, a file for each chapter. A function here that `law` decorates is a law; nothing else need be edited."""
