"""Peers, each in its own environment: the workers import torch, transformers and the peer, but not continual_petl.

`client` and `scouting` run in our environment and communicate with the workers.
"""
