"""Reports: functions from a record to rows, text or JSON; nothing here plans or measures."""
