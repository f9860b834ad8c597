"""What a job file may say, for editors and programs that write one."""

from typing import Any

from fastapi import APIRouter

from stretto.jobfile.schema import file_schema
from stretto.service.http.auth import Who

router = APIRouter(prefix="/api/v1", tags=["jobs"])


@router.get("/job-schema", response_model=dict[str, Any])
async def job_schema(caller: Who) -> dict[str, Any]:
    """The JSON Schema of a job file, for editors and programs that write one."""
    return file_schema()
