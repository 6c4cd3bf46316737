"""One file per step. A step that was released is never changed again."""
