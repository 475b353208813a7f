"""The small preset's own start: a tokenizer, a small model, and demonstrations to imitate.

The paper starts from a pretrained 4B model; a machine without weights or network starts here.
"""
