"""Images and prompts -> unit features."""
