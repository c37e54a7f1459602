_jaxssl() {
    local IFS=$'\n' line="${COMP_LINE:0:COMP_POINT}"
    local word="${line##*[[:space:]]}"
    COMPREPLY=($("$1" --complete "$line" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[$COMP_WORDBREAKS]}"}"}")
    [[ "${COMPREPLY-}" == *[=.] ]] && compopt -o nospace 2>/dev/null
}
complete -o default -F _jaxssl jaxssl
