"""How a batch becomes pairs, one pipeline a file: `method(net, projector, objective, **hyper)`."""
