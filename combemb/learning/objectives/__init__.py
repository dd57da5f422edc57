"""Losses, pair rules, prototypes, meta-class sets and neighbours: functions of tensors that methods combine."""
