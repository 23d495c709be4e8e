"""An application by FastAPI: uploads of a form, and an answer that grows token by token."""

import asyncio
import hashlib

from fastapi import FastAPI, Request, UploadFile
from fastapi.responses import StreamingResponse

app = FastAPI()


@app.get("/")
def home():
    return {"is": "up"}


@app.post("/upload")
async def upload(file: UploadFile):
    digest = hashlib.sha256()
    while piece := await file.read(1 << 20):
        digest.update(piece)
    return {"bytes": file.size, "sha256": digest.hexdigest()}


@app.get("/tokens")
async def tokens(request: Request):
    async def events():
        for n in range(20):
            yield f"data: token-{n}\n\n"
            await asyncio.sleep(0.05)
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")
