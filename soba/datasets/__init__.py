"""Where labelled images come from."""
