"""Watches any training script, without an adapter: did each optimizer step use what the backward passes computed?"""
