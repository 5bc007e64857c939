"""Runs on the Hugging Face Hub: what is uploaded, how it is downloaded, and the model card."""
