"""PIL image -> normalised pixels, as CLIP was trained: short side, centre crop, mean and std."""
