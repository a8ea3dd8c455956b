"""What is observed, one file each: its `observe` yields seams, which the recorder enters. Nothing else imports one."""
