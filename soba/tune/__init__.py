"""The methods that need gradients, one per file; torch is imported when one of them is."""
