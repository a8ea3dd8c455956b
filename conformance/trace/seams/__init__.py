"""How functions of torch, Horovod and apex are replaced for a while."""
