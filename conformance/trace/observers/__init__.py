"""Observers, one file each: `observe` yields seams, which the recorder enters. Nothing else imports an observer."""
