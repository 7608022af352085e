"""The scheduler: compensation of the outbox and periodic jobs. APScheduler is only its clock."""
