"""Training schemes (siamese, momentum, two_tower): from a batch of views to a loss."""
