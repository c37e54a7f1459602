_jaxssl() {
    local -a found
    found=(${(f)"$($words[1] --complete "$words[1,CURRENT-1] $PREFIX" 2>/dev/null)"})
    if (( $#found )); then
        compadd -S '' -- ${(M)found:#*[=.]}
        compadd -- ${found:#*[=.]}
    else
        compset -P '*='
        _files
    fi
}
compdef _jaxssl jaxssl
