"""How well rows find their task by themselves, and what that costs in accuracy."""
