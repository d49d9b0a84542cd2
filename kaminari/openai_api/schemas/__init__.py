"""What clients may send, as pydantic models: shapes and types only, no meaning and no engine."""
