"""Loops that are not ours: how do Hugging Face's Trainer, Lightning, or any other loop report and leave?

Training through an adapter does not change its size in place. A resize is a checkpoint, an end with status
143, and a start with other workers. Each adapter imports its framework when it is imported itself.
"""
