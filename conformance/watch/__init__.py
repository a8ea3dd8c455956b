"""Watches any training script, without an adapter: did each optimizer step use the gradients that were computed?"""
