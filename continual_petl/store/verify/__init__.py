"""Verify a certificate: digests and probe."""
