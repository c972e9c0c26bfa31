"""The machine during a run: samples of its GPUs, CPU, memory and disk in `system.jsonl`, and what they come to."""
